"""What is counted: attributes, recodes, schemas and the histogram."""
