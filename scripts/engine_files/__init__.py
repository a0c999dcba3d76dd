"""Small models of the types that engines know: their configs, and the record of what real ones answer."""
