"""What a run says of itself while it lasts: log, status, forecast, processor time."""
