"""The format of captures: ``record.py`` defines a record, ``files.py`` reads and writes files.

The feature ``capture`` writes such files while the gateway serves. The lab reads them.
"""
