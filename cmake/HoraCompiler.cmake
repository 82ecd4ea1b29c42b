# Compiler settings for all targets: C++20, warnings are errors, results that do not depend on the processor.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  message(FATAL_ERROR "Hora runs on Linux x86_64 and aarch64 only; this is ${CMAKE_SYSTEM_NAME} "
                      "${CMAKE_SYSTEM_PROCESSOR}.")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(HORA_CCACHE ccache)
if(HORA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${HORA_CCACHE}")
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
                    -Werror -ffp-contract=off -fno-gnu-unique -fno-omit-frame-pointer)
# What a static library brings along stays inside; what nobody calls is not a dependency.
add_link_options(-Wl,--exclude-libs,ALL -Wl,--as-needed)
if(HORA_SANITIZE)
  # Instrumented, gcc 12 believes that parts of its own <regex> are uninitialized.
  add_compile_options(-fsanitize=${HORA_SANITIZE} -fno-sanitize-recover=all -O1 -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${HORA_SANITIZE})
  add_compile_definitions(HORA_SANITIZED)
endif()
if(HORA_SANITIZE MATCHES thread)
  # ThreadSanitizer does not model fences, and gcc warns about each. Every fence of ours stands between two
  # atomic accesses, which it does see.
  add_compile_options(-Wno-tsan)
endif()

# A library of one folder; its headers are included from the project root.
function(hora_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
endfunction()
