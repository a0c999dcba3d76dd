"""Choose a table for a model by measurement: run the candidates in one loaded model, and pick the best."""
