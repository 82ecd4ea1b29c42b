# Third-party libraries, all from the distribution. What is missing is named with the package that has it; the
# same packages, for `make`, are in packages.txt beside this file.
#
# The wheel must run where these packages are not installed: what has an archive is linked from it (libsodium),
# spdlog is headers, and the two for which Debian has neither travel in the wheel (hora_bundle below). fmt's
# header-only mode would do too, but costs 6 s a unit.
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
find_library(HORA_FMT NAMES libfmt.a fmt REQUIRED)

# hora_bundle(<target>...): the targets find the shared libraries that the wheel carries in hora/lib.
function(hora_bundle)
  foreach(library "${HORA_HWY}" "${HORA_FMT}")
    if(IS_SYMLINK "${library}")
      file(REAL_PATH "${library}" file)
      file(READ_SYMLINK "${library}" name)
      install(FILES "${file}" RENAME "${name}" DESTINATION hora/lib COMPONENT wheel)
    endif()
  endforeach()
  # The extension lies in hora/, the launcher in hora/bin.
  set_target_properties(${ARGN} PROPERTIES INSTALL_RPATH "$ORIGIN/lib:$ORIGIN/../lib")
endfunction()
