"""Programs that write pages and images of the documentation."""
