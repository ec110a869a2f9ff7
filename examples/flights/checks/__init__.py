"""Expected results, actual results, and their comparison."""
