"""Plans: choose a table, search for keys that every runtime decodes to it, and write the output."""
