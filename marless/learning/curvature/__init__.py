"""The curvature of an objective: extreme eigenvalues of its Hessian, their ratio, and the noise of its gradient."""
