"""The rules of draft inspection, by what they look at; each module ends with its table."""
