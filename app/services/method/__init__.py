"""What the method pages are made of: every card with numbers put in, the life of a parameter, folklore with its arithmetic."""
