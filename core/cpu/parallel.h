// The CPU backend's loops over OpenMP's threads, the only threading runtime of the process. Work is
// divided by fixed rules, never by who comes first.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace overtok::cpu {

inline int Threads() { return omp_get_max_threads(); }

// body(begin, end) over [0, n), one contiguous piece per thread, piece borders at multiples of
// `grain`. Inline when there is one piece. For bodies whose result per index does not depend on the
// pieces.
template <class Body>
void ParallelFor(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  const int64_t grains = (n + grain - 1) / grain;
  const int64_t pieces = std::min<int64_t>(grains, Threads());
  if (pieces <= 1 || omp_in_parallel() != 0) {
    body(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(pieces))
  {
    const int64_t piece = omp_get_thread_num();
    const int64_t begin = grains * piece / pieces * grain;
    const int64_t end = std::min(n, grains * (piece + 1) / pieces * grain);
    if (begin < end) body(begin, end);
  }
}

// Dynamic tasks: body(index) for index in [0, n), handed out one at a time; for uneven tasks whose
// results are independent.
template <class Body>
void ParallelTasks(int64_t n, const Body& body) {
  if (n <= 0) return;
  if (n == 1 || Threads() == 1 || omp_in_parallel() != 0) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace overtok::cpu
