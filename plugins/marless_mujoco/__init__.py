"""MuJoCo tasks of Gymnasium, stepped in compiled batches: environments `mujoco/<task>`."""
