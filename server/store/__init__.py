"""Storage of responses and conversations.

The Responses API (``server/apis/responses``) is the only user. ``base.py`` has the stored types.
``sql.py`` stores responses and ``conversations.py`` conversations, in any database that SQLAlchemy
supports. ``items.py`` is the index that finds an item by its id, and ``database.py`` opens and
checks the database.

Everything stored has an owner, and owners cannot see each other's data.
"""
