# Compiler settings that every target shares, and the two helpers that define targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
# O3 without -ffast-math: NaN guards have to stay. Contraction is off so that a sum does not depend on which compiler
# chose to fuse it; kernels that want fused multiply-adds ask for them.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")

add_library(overtok_settings INTERFACE)
target_include_directories(overtok_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(overtok_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow
                       -Wnon-virtual-dtor -Woverloaded-virtual -ffp-contract=off>)
if(OVERTOK_WERROR)
  target_compile_options(overtok_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(OVERTOK_SANITIZE)
  target_compile_options(overtok_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${OVERTOK_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(overtok_settings INTERFACE -fsanitize=${OVERTOK_SANITIZE})
endif()
target_link_libraries(overtok_settings INTERFACE OpenMP::OpenMP_CXX Threads::Threads)

# overtok_library(NAME SOURCES a.cc b.cc DEPENDS overtok_core absl::status ...)
function(overtok_library name)
  cmake_parse_arguments(L "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${L_SOURCES})
  target_link_libraries(${name} PUBLIC overtok_settings ${L_DEPENDS})
endfunction()

# overtok_test(NAME SOURCES a_test.cc ... DEPENDS overtok_core ...): one program, one CTest entry per program (the
# programs are quick; an entry per case would spend the time on starting processes).
function(overtok_test name)
  cmake_parse_arguments(T "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE overtok_test_support ${T_DEPENDS} GTest::gmock GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600)
endfunction()

# The environment of tests that start ranks: one thread each, mpirun also as root, and sanitizers that leave out MPI
# itself, which is not instrumented and keeps memory until its process ends.
set(OVERTOK_MPI_ENVIRONMENT OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=ignore_noninstrumented_modules=1)

# A CTest entry that starts PROGRAM (a target) by mpirun on so many RANKS, also where there are fewer cores.
function(overtok_mpi_run name program ranks)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} --oversubscribe --bind-to none $<TARGET_FILE:${program}>)
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 PROCESSORS ${ranks} ENVIRONMENT "${OVERTOK_MPI_ENVIRONMENT}")
endfunction()

# overtok_mpi_test(NAME RANKS 2 4 SOURCES a_test.cc ... DEPENDS overtok_comm ...): one program whose ranks are processes
# (tests/support/mpi_main.h), and one CTest entry, NAME_2, for each number of ranks.
function(overtok_mpi_test name)
  cmake_parse_arguments(T "" "" "RANKS;SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE overtok_test_support overtok_mpi_main ${T_DEPENDS} GTest::gmock GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  foreach(ranks ${T_RANKS})
    overtok_mpi_run(${name}_${ranks} ${name} ${ranks})
  endforeach()
endfunction()
