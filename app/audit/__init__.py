"""Rules about configurations that exist: what fails, what is ignored, and what it costs."""
