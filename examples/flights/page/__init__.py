"""The page of a run: one HTML file that includes its drawings."""
