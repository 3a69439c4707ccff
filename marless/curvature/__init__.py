"""How an objective bends: extreme eigenvalues of its Hessian, their ratio, and the noise of its gradient."""
