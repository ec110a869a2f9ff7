"""Queries and changes that people make on a server: shared parts here, and one folder for each kind of object.

``status`` modules are PURE: values as they are shown. ``reading`` queries the server. ``changes`` declares the actions.
"""
