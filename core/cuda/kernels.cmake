# The kernel sources: compiled by nvcc for GPUs (core/cuda/CMakeLists.txt) and by the host's compiler for the emulation
# (core/cuda/emulation/CMakeLists.txt).
set(OVERTOK_CUDA_KERNELS
  elementwise.cu
  kernels.cu
)
