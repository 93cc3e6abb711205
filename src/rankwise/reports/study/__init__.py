"""The page of a study: many runs side by side."""
