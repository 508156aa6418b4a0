# Builds tests/native for aarch64 on any machine, with the compiler in the ziglang package, and runs
# them in an emulator. `make test-aarch64` sets RNNPACK_PYTHON.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
# CMake's trials of the compiler read this file again, without the command line's variables.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RNNPACK_PYTHON)
set(CMAKE_CXX_COMPILER "${RNNPACK_PYTHON}" -m ziglang c++)
set(CMAKE_CXX_FLAGS_INIT "-target aarch64-linux-musl")
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)  # the emulator has no files of an aarch64 system
set(CMAKE_CROSSCOMPILING_EMULATOR "${RNNPACK_PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/emulate.py")
