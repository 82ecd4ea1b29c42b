# Third-party libraries, all from the distribution. What is missing is named with the package that has it; the
# same packages, for `make`, are in packages.txt beside this file.
#
# The wheel must run where these packages are not installed, so nothing of theirs may remain a shared library:
# fmt and spdlog are compiled in as headers, libsodium is its archive, Highway is used for its headers only
# (the choice among the compiled targets is ours).
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
# Highway's assertions, which only sanitizer builds compile, call into its library.
set(HORA_HWY "")
if(HORA_SANITIZE)
  find_library(HORA_HWY hwy REQUIRED)
endif()
add_library(hora_fmt INTERFACE)
target_compile_definitions(hora_fmt INTERFACE FMT_HEADER_ONLY)
set(HORA_FMT hora_fmt)
