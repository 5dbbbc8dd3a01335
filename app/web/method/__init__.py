"""The method pages: what is computed, made from cards, tables and models, so that it cannot drift."""
