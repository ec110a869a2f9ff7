"""Forms in which producers write an entry, besides plain fields: worker, console and Spark read them alike."""
