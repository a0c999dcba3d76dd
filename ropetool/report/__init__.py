"""Results for people: lines, sections and charts, and the writers that turn them into text and HTML."""
