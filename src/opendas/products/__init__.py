"""Products: declarations of schema, query groups, constraints, budget and passes."""
