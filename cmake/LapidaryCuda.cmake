# Turns CUDA on: finds nvcc, fixes the architecture and gives CUDA sources their flags.

# 12.4 is the first nvcc that takes GCC 13 as host compiler; ./lapidary asks for the same version.
set(min_nvcc_version 12.4)
set(how_to_get_nvcc "install the CUDA toolkit ${min_nvcc_version} or newer \
(https://developer.nvidia.com/cuda-downloads) or configure with -DLAPIDARY_CUDA=OFF")

# A toolkit is often installed without being on PATH.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(
    CMAKE_CUDA_COMPILER nvcc
    HINTS ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda
    PATH_SUFFIXES bin)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "LAPIDARY_CUDA is on but there is no nvcc: ${how_to_get_nvcc}.")
  endif()
endif()

# Compiled ahead of time for Hopper: 90a has wgmma and TMA, and its code runs on nothing else.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")

enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS min_nvcc_version)
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old: ${how_to_get_nvcc}.")
endif()
find_package(CUDAToolkit REQUIRED)

# nvcc has spoken C++20 since 12.0; CMake before 3.26 does not know it.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# -lineinfo lets profilers and compute-sanitizer name source lines and costs nothing at run time.
# -Wextra and -Wshadow are left out: the host code that nvcc generates trips them.
set(nvcc_flags -lineinfo --Werror=all-warnings)
foreach(host_flag -Wall -Werror -Wno-sign-compare -ffp-contract=off
                  -fmacro-prefix-map=${path_to_tree}=)
  list(APPEND nvcc_flags -Xcompiler=${host_flag})
endforeach()
target_compile_options(lapidary_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${nvcc_flags}>")
