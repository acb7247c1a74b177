// OT_HOST_DEVICE: functions that kernels call as well as the host.
#pragma once

#if defined(__CUDACC__)
#define OT_HOST_DEVICE __host__ __device__
#else
#define OT_HOST_DEVICE
#endif
