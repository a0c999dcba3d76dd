"""Which table a server rotates by: what it answers held against the same model with every table that it may have."""
