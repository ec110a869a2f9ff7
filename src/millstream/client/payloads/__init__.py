"""Forms in which producers write an entry, beside plain fields: what worker, console and Spark read alike."""
