"""The page that a run leaves: one HTML file with its drawings inside."""
