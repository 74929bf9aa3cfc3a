"""Why a family's constraints contradict each other."""
