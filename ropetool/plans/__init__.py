"""Plans: which table, the search for a file that every runtime reads as it, and carrying that out."""
