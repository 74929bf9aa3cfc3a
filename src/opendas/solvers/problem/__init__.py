"""The family problem, its Hessian and the certificate of its optimum."""
