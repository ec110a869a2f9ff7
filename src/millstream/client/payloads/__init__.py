"""Message formats of producers, besides plain fields: worker, console and Spark read them alike."""
