"""Results of jobs: their keys, the field that requests one, and their records."""
