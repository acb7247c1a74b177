// The world of a test program that mpirun starts (overtok_mpi_test): every rank runs every test.
#pragma once

#include "core/comm/communicator.h"
#include "core/comm/launch.h"

namespace overtok::testing {

Communicator& World();
const LaunchFacts& Launch();

}  // namespace overtok::testing
