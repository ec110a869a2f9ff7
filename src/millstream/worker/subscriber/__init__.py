"""One subscriber at work: fetching, lanes, batches, keys in order, isolation of poison messages."""
