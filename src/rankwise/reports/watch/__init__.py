"""`rankwise watch`: the runs of a folder as pages on a server, live while they are trained."""
