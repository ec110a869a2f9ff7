"""The API names of other libraries with Millstream's behaviour. A program can first be moved by its imports alone."""
