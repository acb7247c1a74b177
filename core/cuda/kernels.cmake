# The kernel sources: compiled by nvcc for GPUs (core/cuda/CMakeLists.txt) and by the host's compiler for the emulation
# (core/cuda/emulation/CMakeLists.txt).
set(OVERTOK_CUDA_KERNELS
  activation.cu
  attention_backward.cu
  attention_f32.cu
  attention_forward.cu
  copy_region.cu
  elementwise.cu
  embedding.cu
  kernels.cu
  norm.cu
  optimizer_hyperball.cu
  optimizer_moments.cu
  optimizer_muon.cu
  optimizer_norms.cu
  ordered_sum.cu
  radix_sort.cu
  reduce.cu
  rope.cu
  row_tree_sum.cu
  softmax_xent.cu
  softmax_xent_shard.cu
  sum_rows.cu
  table_replay.cu
  table_update.cu
)
