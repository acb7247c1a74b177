# cuDNN's headers, for attention by it (train.attention=cudnn): cudnn_frontend.h, which PyPI's nvidia-cudnn-frontend brings
# (12 MB), and cudnn.h, of nvidia-cudnn-cu13 or -cu12 (500 MB, as the library comes along) or of a system's package. Looked
# for in OVERTOK_CUDNN_HINT (a folder of `pip install --target`, or a prefix), the site-packages of the python3 in the PATH,
# and the toolkit. The library itself is opened at run time (core/cuda/libraries.h). Sets OVERTOK_HAVE_CUDNN.
set(OVERTOK_CUDNN_HINT "" CACHE PATH "Folder with include/cudnn_frontend.h, and cudnn.h in include/ or nvidia/cudnn/include/")
set(OVERTOK_HAVE_CUDNN OFF)
if(NOT OVERTOK_HAVE_CUDA)
  return()
endif()

# The version that a header's lines `#define NAME n` tell, of the names given.
function(overtok_header_version file result)
  set(version "")
  foreach(part ${ARGN})
    file(STRINGS ${file} line REGEX "^#define ${part} +[0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND version ${number})
  endforeach()
  list(JOIN version "." version)
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

set(cudnn_folders ${OVERTOK_CUDNN_HINT})
execute_process(COMMAND python3 -c "import site, sys; print(';'.join(site.getsitepackages() + [site.getusersitepackages()]))"
                OUTPUT_VARIABLE cudnn_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
list(APPEND cudnn_folders ${cudnn_packages})
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${cudnn_folders} PATH_SUFFIXES include)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${cudnn_folders} ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES nvidia/cudnn/include include)
if(CUDNN_FRONTEND_INCLUDE AND CUDNN_INCLUDE)
  overtok_header_version(${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h cudnn_frontend_version
    CUDNN_FRONTEND_MAJOR_VERSION CUDNN_FRONTEND_MINOR_VERSION CUDNN_FRONTEND_PATCH_VERSION)
  overtok_header_version(${CUDNN_INCLUDE}/cudnn_version.h cudnn_version CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
  if(cudnn_frontend_version VERSION_GREATER_EQUAL 1.32 AND cudnn_version VERSION_GREATER_EQUAL 9.25)
    set(OVERTOK_HAVE_CUDNN ON)
    message(STATUS "cuDNN: ${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend.h ${cudnn_frontend_version}, ${CUDNN_INCLUDE}/cudnn.h "
                   "${cudnn_version}; the library is looked for at run time")
  else()
    message(STATUS "cuDNN: cudnn_frontend.h is of ${cudnn_frontend_version} and cudnn.h of ${cudnn_version}; 1.32 and 9.25 or "
                   "later are needed: no train.attention=cudnn")
  endif()
else()
  message(STATUS "cuDNN: cudnn_frontend.h ${CUDNN_FRONTEND_INCLUDE}, cudnn.h ${CUDNN_INCLUDE}: no train.attention=cudnn "
                 "(nvidia-cudnn-frontend and nvidia-cudnn-cu13 from PyPI; OVERTOK_CUDNN_HINT)")
endif()
