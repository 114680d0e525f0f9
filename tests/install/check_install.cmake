# Installs the library into WORK/tree, looks at what arrived, then configures, builds and runs WORK/consumer against nothing but that tree.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
endfunction()

set(tree ${WORK}/tree)
file(REMOVE_RECURSE ${tree} ${WORK}/consumer)
set(library_build ${BUILD})
if(SHARED)
  set(library_build ${SHARED_BUILD})
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${library_build} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${CONFIG} -DBUILD_SHARED_LIBS=ON -DKVLOOM_BUILD_TESTS=OFF
      -DKVLOOM_BUILD_CLI=OFF -DKVLOOM_BUILD_EXAMPLES=OFF -DKVLOOM_BUILD_BENCHMARKS=OFF -DCMAKE_C_COMPILER=${C_COMPILER}
      -DCMAKE_CXX_COMPILER=${CXX_COMPILER})
  run(${CMAKE_COMMAND} --build ${library_build} --target kvloom -j 2)
endif()
run(${CMAKE_COMMAND} --install ${library_build} --prefix ${tree} --component kvloom)

# No room behind the interface, and no header of a library that users don't have.
file(GLOB_RECURSE headers RELATIVE ${tree}/include ${tree}/include/*)
foreach(header api/engine.h api/ops.h api/kvloom.h api/kvloom_device_plan.h contract/batch.h attn/state.h support/error.h plan/scheduler_config.h)
  if(NOT "kvloom/${header}" IN_LIST headers)
    message(FATAL_ERROR "kvloom/${header} was not installed")
  endif()
endforeach()
foreach(header ${headers})
  if(header MATCHES "kvloom/(cpu|runtime|ref|jit)/|kvloom/support/(check|thread_pool)|kvloom/plan/(planner|levels)|kvloom/api/(plan_state|c_convert)")
    message(FATAL_ERROR "${header} is not part of the interface, but was installed")
  endif()
  file(STRINGS ${tree}/include/${header} foreign REGEX "include.*(fmt/|nlohmann/|CLI/)")
  if(foreign)
    message(FATAL_ERROR "${header}: ${foreign}")
  endif()
endforeach()

set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE} -fno-sanitize-recover=all")
endif()
run(${CMAKE_COMMAND} -S ${SOURCE}/tests/install/consumer -B ${WORK}/consumer -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_PREFIX_PATH=${tree}
    -DWANTED_VERSION=${VERSION} -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_C_FLAGS=${flags}
    -DCMAKE_CXX_FLAGS=${flags})
run(${CMAKE_COMMAND} --build ${WORK}/consumer -j 2)
run(${WORK}/consumer/consumer_cc)
run(${WORK}/consumer/consumer_c)

# A project that has no C++ at all. Sanitizers bring a C++ runtime of their own, which a C program has to be linked with by hand.
if(NOT SANITIZE)
  file(REMOVE_RECURSE ${WORK}/consumer_c)
  run(${CMAKE_COMMAND} -S ${SOURCE}/tests/install/consumer_c -B ${WORK}/consumer_c -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_PREFIX_PATH=${tree}
      -DCMAKE_C_COMPILER=${C_COMPILER})
  run(${CMAKE_COMMAND} --build ${WORK}/consumer_c -j 2)
  run(${WORK}/consumer_c/consumer_c)

  # The same without CMake: cc main.c $(pkg-config --cflags --libs kvloom).
  find_program(pkg_config pkg-config)
  if(pkg_config)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${tree}/lib/pkgconfig ${pkg_config} --cflags --libs kvloom
                    OUTPUT_VARIABLE words OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(words UNIX_COMMAND "${words}")
    run(${C_COMPILER} ${SOURCE}/tests/install/consumer/consumer.c ${words} -o ${WORK}/consumer_c/by_pkg_config)
    run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${tree}/lib ${WORK}/consumer_c/by_pkg_config)
  else()
    message(STATUS "no pkg-config here: kvloom.pc was not tried")
  endif()
endif()

# The shared library shows names of kvloom only: what is compiled into it must not meet another version of itself in the program.
if(SHARED)
  execute_process(COMMAND nm -D --defined-only ${tree}/lib/libkvloom.so OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  list(LENGTH lines count)
  list(FILTER lines EXCLUDE REGEX "kvloom")
  if(NOT status EQUAL 0 OR lines OR count LESS 50)
    message(FATAL_ERROR "libkvloom.so (${count} names) shows others' names:\n${lines}")
  endif()
endif()
