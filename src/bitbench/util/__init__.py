"""The base of all other packages: errors, units, files, HTTP, processes. It imports no other
package.
"""
