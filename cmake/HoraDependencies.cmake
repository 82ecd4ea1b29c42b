# Third-party libraries, all from the distribution. What is missing is named with the package that has it; the
# same packages, for `make`, are in packages.txt beside this file.
#
# The wheel must run where these packages are not installed: fmt and spdlog are compiled in as headers, libsodium
# is its archive, and Highway, for which Debian has no archive, travels in the wheel (hora_bundle below).
set(HORA_MISSING "")
macro(hora_need_header header package)
  find_path(HORA_HEADER_${package} "${header}")
  if(NOT HORA_HEADER_${package})
    list(APPEND HORA_MISSING "${package}")
  endif()
endmacro()

hora_need_header(tl/expected.hpp libexpected-dev)
hora_need_header(boost/asio.hpp libboost-dev)
hora_need_header(hwy/highway.h libhwy-dev)
hora_need_header(flatbuffers/flatbuffers.h libflatbuffers-dev)
hora_need_header(spdlog/spdlog.h libspdlog-dev)
hora_need_header(fmt/format.h libfmt-dev)
hora_need_header(CLI/CLI.hpp libcli11-dev)
hora_need_header(sodium.h libsodium-dev)
if(HORA_TESTS)
  hora_need_header(catch2/catch.hpp catch2)
endif()
find_program(HORA_FLATC flatc)
if(NOT HORA_FLATC)
  list(APPEND HORA_MISSING flatbuffers-compiler)
endif()
if(HORA_MISSING)
  list(JOIN HORA_MISSING " " HORA_MISSING)
  message(FATAL_ERROR "Hora needs packages that are not installed. Run:\n"
                      "  apt-get install ${HORA_MISSING}")
endif()

find_package(Threads REQUIRED)
find_library(HORA_SODIUM NAMES libsodium.a sodium REQUIRED)
find_library(HORA_HWY NAMES libhwy.a hwy REQUIRED)
add_library(hora_fmt INTERFACE)
target_compile_definitions(hora_fmt INTERFACE FMT_HEADER_ONLY)
set(HORA_FMT hora_fmt)

# hora_bundle(<target>): the wheel carries the shared libraries that the target needs and no system has.
function(hora_bundle target)
  if(IS_SYMLINK "${HORA_HWY}")
    file(REAL_PATH "${HORA_HWY}" library)
    file(READ_SYMLINK "${HORA_HWY}" name)
    install(FILES "${library}" RENAME "${name}" DESTINATION hora/lib COMPONENT wheel)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
  endif()
endfunction()
