"""Which table for this model, measured: candidates beside each other in one loaded model, and the one to take."""
