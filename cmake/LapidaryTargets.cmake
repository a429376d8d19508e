# One place for compile flags and for the kinds of target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
# The same objects make the program and the shared libraries (src/library, python/). Hidden symbols keep calls direct,
# so position independence costs nothing.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# Code that no token waits for (the glue: commands, tests, what reads requests and files) is compiled in less time.
set(LAPIDARY_GLUE_OPTIMIZATION $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)

# The compiler's cache sees paths of the tree from the build directory on, and so serves any checkout of it.
find_program(CCACHE_PROGRAM ccache)
set(path_to_src ${PROJECT_SOURCE_DIR}/src)
if(CCACHE_PROGRAM)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
  file(RELATIVE_PATH path_to_src ${CMAKE_BINARY_DIR} ${path_to_src})
endif()
string(REGEX REPLACE "src$" "" path_to_tree ${path_to_src})

# Every target of ours links this: warnings are errors here and nowhere else.
add_library(lapidary_flags INTERFACE)
target_include_directories(lapidary_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(
  lapidary_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wshadow -Wno-sign-compare>)
# GCC 12 sees overlapping copies in std::string where there are none (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(lapidary_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
# Bitwise mode equality rests on every row being computed by the same operations: no contraction or
# reassociation that differs between two call sites. FMA is used explicitly through Highway.
target_compile_options(lapidary_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# Messages name files from the root of the tree, whatever machine compiled them.
target_compile_options(lapidary_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${path_to_tree}=>)
# Against what a hostile request or file might find: what runs over an array on the stack, or over a buffer whose size
# is known, ends the program. Sanitizers see more, by themselves; _FORTIFY_SOURCE needs an optimiser. Not for CUDA
# sources: they read no bytes from outside.
if(NOT LAPIDARY_SANITIZE)
  target_compile_options(
    lapidary_flags
    INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>
              "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()
# The dynamic linker's tables are complete, and read-only, before a byte from outside is read.
target_link_options(lapidary_flags INTERFACE LINKER:-z,relro,-z,now)
if(LAPIDARY_SANITIZE)
  set(sanitize_flags -fsanitize=${LAPIDARY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(lapidary_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${sanitize_flags}>)
  target_link_options(lapidary_flags INTERFACE ${sanitize_flags})
endif()

# Coverage feedback must reach the libraries too: without it a fuzzer only steers by its own file.
if(LAPIDARY_FUZZERS)
  target_compile_options(lapidary_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# lapidary_glue(TARGET): its code is glue.
function(lapidary_glue target)
  target_compile_options(${target} PRIVATE ${LAPIDARY_GLUE_OPTIMIZATION})
endfunction()

# lapidary_library(NAME [GLUE] [UNITY] SOURCES... DEPS...): a static library lapidary_NAME. GLUE: no token waits for its
# code. UNITY: ten files are compiled at a time, for most of one is its headers; their names must not clash.
function(lapidary_library name)
  cmake_parse_arguments(ARG "GLUE;UNITY" "" "SOURCES;DEPS" ${ARGN})
  add_library(lapidary_${name} STATIC ${ARG_SOURCES})
  set_target_properties(lapidary_${name} PROPERTIES UNITY_BUILD ${ARG_UNITY} UNITY_BUILD_BATCH_SIZE 10)
  target_link_libraries(lapidary_${name} PUBLIC lapidary_flags ${ARG_DEPS})
  if(ARG_GLUE)
    lapidary_glue(lapidary_${name})
  endif()
endfunction()

# What the two kinds of test share: LABEL (default fast) and TIMEOUT in seconds (default 120) become
# test_properties. Tests that use the GPU run one at a time, for each sizes its memory as if alone.
macro(lapidary_parse_test)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS;COMMAND" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(test_properties LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LABEL STREQUAL gpu)
    list(APPEND test_properties RESOURCE_LOCK gpu)
  endif()
endmacro()

# lapidary_test(NAME SOURCES... DEPS... [LABEL fast|slow|gpu|model|server] [TIMEOUT seconds]): one
# GoogleTest program NAME_test; ctest runs each TEST by itself. A gpu test skips itself (GTEST_SKIP) where
# ListGpus() is empty.
function(lapidary_test name)
  if(NOT LAPIDARY_TESTS)
    return()
  endif()
  lapidary_parse_test(${ARGN})
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE lapidary_flags ${ARG_DEPS} GTest::gtest GTest::gmock
                                             GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE LAPIDARY_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  lapidary_glue(${name}_test)
  gtest_discover_tests(
    ${name}_test
    NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
    PROPERTIES ${test_properties})
endfunction()

# lapidary_script_test(NAME COMMAND... [LABEL ...] [TIMEOUT seconds]): any program as the test NAME; it
# passes when it exits with 0. Python scripts run under ${LAPIDARY_PYTHON}.
function(lapidary_script_test name)
  if(NOT LAPIDARY_TESTS)
    return()
  endif()
  lapidary_parse_test(${ARGN})
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  set_tests_properties(${name} PROPERTIES ${test_properties})
endfunction()

# lapidary_benchmark(NAME SOURCES... DEPS...): a Google Benchmark program NAME_bench.
function(lapidary_benchmark name)
  if(NOT LAPIDARY_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name}_bench ${ARG_SOURCES})
  target_link_libraries(${name}_bench PRIVATE lapidary_flags ${ARG_DEPS} benchmark::benchmark_main)
endfunction()

# lapidary_fuzzer(NAME SOURCE DEPS...): SOURCE defines LLVMFuzzerTestOneInput. With LAPIDARY_FUZZERS it
# becomes a libFuzzer program NAME_fuzzer, one of the target `fuzzers`; with tests it is linked to a plain
# driver that replays fuzz/corpus/NAME as the test NAME_corpus, so every input that once broke something
# stays fixed.
function(lapidary_fuzzer name source)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  if(LAPIDARY_FUZZERS)
    add_executable(${name}_fuzzer ${source})
    target_link_libraries(${name}_fuzzer PRIVATE lapidary_flags ${ARG_DEPS})
    target_compile_options(${name}_fuzzer PRIVATE -fsanitize=fuzzer)
    target_link_options(${name}_fuzzer PRIVATE -fsanitize=fuzzer)
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers ${name}_fuzzer)
  endif()
  if(LAPIDARY_TESTS)
    add_executable(${name}_corpus ${source})
    target_link_libraries(${name}_corpus PRIVATE lapidary_flags lapidary_replay_main ${ARG_DEPS})
    lapidary_glue(${name}_corpus)
    add_test(NAME ${name}_corpus COMMAND ${name}_corpus ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
    set_tests_properties(${name}_corpus PROPERTIES LABELS fast TIMEOUT 60)
  endif()
endfunction()
