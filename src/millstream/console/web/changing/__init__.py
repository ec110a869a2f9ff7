"""Changes on the pages: ``change`` shows and makes one, ``correcting`` is a letter's form, ``job`` is under way."""
