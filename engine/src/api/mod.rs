//! The proto boundary: conversion, services, status, listeners.

pub mod pb;
