"""A person's questions to a server and changes on it: the mechanism here, and one folder for each noun.

``status`` modules are PURE: facts as they are shown. ``reading`` asks the server. ``changes`` has the actions.
"""
