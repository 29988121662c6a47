"""What results declare: variants against controls, effects, and their estimates."""
