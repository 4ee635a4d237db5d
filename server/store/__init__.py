"""Storage of responses and conversations.

The Responses API (``server/apis/responses``) is the only caller. ``base.py`` has what is stored,
``sql.py`` the responses and ``conversations.py`` the conversations in any database that SQLAlchemy
reaches, ``items.py`` the index that finds an item by its id, ``database.py`` opens the database and
checks it.

Everything stored has an owner, and an owner sees nothing of another's.
"""
